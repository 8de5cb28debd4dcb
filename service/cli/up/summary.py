"""What `up` prints when all is ready."""

import json
import sys
from pathlib import Path

from service.cli.up import external
from service.cli.up.plan import Plan, smtp_is_local
from service.queues import QUEUES

FIRST_JOB = {
    "type": "email.send",
    "payload": {
        "to": "ada@example.com",
        "subject": "Hello",
        "template_id": "welcome",
        "context": {"name": "Ada"},
    },
}

#: Any of them in CALLBOARD_ACTORS brings the job.
MODULES_OF_FIRST_JOB = frozenset({"actors", "actors.email"})


def summary(plan: Plan, *, detached: bool, seconds: float) -> str:
    """Return what runs where, how to send a first job, and how to stop."""
    addresses, folder = plan.addresses, _relative(plan.state.root)
    redis = external.address(addresses.redis_url, 6379)
    database = external.address(addresses.database_url, 5432)
    stop = f"{_command('down')}" if detached else f"Ctrl-C here, or {_command('down')} elsewhere"
    return f"""
Callboard is running (ready in {seconds:.1f} s).

  API         {addresses.api_url}   (documentation: {addresses.api_url}/docs)
  Redis       {redis}   ({_whose(plan.redis is None, "REDIS_URL", f"{folder}/redis/")})
  PostgreSQL  {database}   ({_whose(plan.postgres is None, "DATABASE_URL", f"{folder}/postgres/")})
  Workers     {", ".join(QUEUES)}
  Mail        127.0.0.1:{addresses.smtp_port}   (each mail is a file in {folder}/mail/)
  Logs        {folder}/log/
  Shells      . {folder}/env   (the addresses above as variables)
{_mail_note(plan)}
{_first_job(plan)}

Stop: {stop}

"""


def _first_job(plan: Plan) -> str:
    url = plan.addresses.api_url
    if not MODULES_OF_FIRST_JOB.intersection(plan.settings.actor_modules):
        return f"Send a job of your own: {url}/docs shows how"
    key, header = _first_key(plan), ""
    if key:
        header = ' -H "Authorization: Bearer $KEY"'
    return f"""Send a first job:
{key}
  curl -s {url}/jobs{header} -H 'Content-Type: application/json' \\
    -d '{json.dumps(FIRST_JOB)}'"""


def _first_key(plan: Plan) -> str:
    """Return the lines that make a key, where the API asks for one."""
    if plan.settings.api_access == "open":
        return ""
    callboard = _relative(Path(sys.executable).with_name("callboard"))
    return f"""
  . {_relative(plan.state.env)}
  KEY=$({callboard} keys create first --scope submit --scope read | grep -o 'cb_[0-9a-f_]*')"""


def _mail_note(plan: Plan) -> str:
    if smtp_is_local(plan.settings):
        return ""
    return f"""
No mail goes to CALLBOARD_SMTP_HOST={plan.settings.smtp_host}: `callboard up` is for development, and whatever its
workers send is kept in the folder named above and delivered to nobody.
"""


def _whose(is_external: bool, variable: str, data: str) -> str:
    return f"yours, named by {variable}" if is_external else f"data in {data}"


def _command(name: str) -> str:
    return f"./dev {name}" if Path("dev").is_file() else f"callboard {name}"


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
