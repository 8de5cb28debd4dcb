"""Who may do what: API keys, scopes and tenants, and the log of operators' acts. `api` and `cli` import it."""
