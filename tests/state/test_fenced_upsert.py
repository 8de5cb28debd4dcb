"""The statement of docs/delivery.md, which a holder that was paused and comes back late can't win."""

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "delivery.md"


@pytest.fixture
def upsert(database_url: str) -> Any:
    [statement] = re.findall(r"```sql\n(.+?)```", DOCUMENT.read_text(), re.DOTALL)
    with psycopg.connect(database_url.replace("postgresql+psycopg:", "postgresql:"), autocommit=True) as connection:
        connection.execute("CREATE TABLE invoices (invoice_id int PRIMARY KEY, total int, fencing_token bigint)")

        def write(total: int, token: int) -> int:
            values = {"invoice_id": 1, "total": total, "fencing_token": token}
            connection.execute(statement, values)
            [(stored,)] = connection.execute("SELECT total FROM invoices").fetchall()
            return stored

        yield write


def test_a_stale_holder_can_not_win(upsert: Any) -> None:
    assert upsert(total=10, token=5) == 10
    assert upsert(total=20, token=7) == 20
    assert upsert(total=10, token=5) == 20, "it was paused while the other one ran"
    assert upsert(total=21, token=7) == 21, "the holder itself may write again"
    assert upsert(total=30, token=8) == 30
