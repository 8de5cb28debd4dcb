"""Sends many messages to one queue in few round trips, and says of each whether it is stored."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import redis
from dramatiq.message import Message
from redis.exceptions import NoScriptError

from service.broker.sender import REPEAT_WITHIN_SECONDS
from service.broker.unique_keys import Met
from service.broker.wire import Row
from service.errors import BrokerUnavailable, JobExists

if TYPE_CHECKING:
    from service.broker.sending import Sending

#: A batch ends at so many messages, or bytes: it must be stored well within the time-out.
SEND_BATCH = 500
SEND_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SendReport:
    """What became of the messages of one `send_many`: the stored ones, and the others with the reason.

    The reason is BrokerUnavailable where Redis did not take a message, or the error of the message itself.
    """

    stored: list[Message[Any]] = field(default_factory=list[Message[Any]])
    failed: list[tuple[Message[Any], Exception]] = field(default_factory=list[tuple[Message[Any], Exception]])
    #: By message id, the jobs that unique keys have met. What has only rescheduled one is not among the stored.
    met: dict[str, Met] = field(default_factory=dict[str, Met])

    def fail(self, messages: Sequence[Message[Any]], error: Exception) -> None:
        """Note that these were not sent."""
        self.failed.extend((message, error) for message in messages)


@dataclass(frozen=True, slots=True)
class _Batch:
    messages: list[Message[Any]]
    rows: list[Row]
    send: tuple[str, int]
    started: float


class BatchSend:
    """The part of one `send_many` that goes to one queue: each batch is prepared while Redis stores the one before."""

    def __init__(
        self, broker: "Sending", queue: str, delay_ms: int | None, delays_ms: Mapping[str, int], report: SendReport
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._delay_ms = delay_ms
        self._delays_ms = delays_ms
        self._report = report
        self._under_way: deque[_Batch] = deque()
        self._prepared = 0

    def send(self, messages: Sequence[Message[Any]]) -> None:
        """Send messages of this queue, in their order. Once Redis is out of reach, no more is tried."""
        answers = self._broker.wire.enqueue_each(self._queue, self._batches(messages))
        for error in answers:
            batch = self._under_way.popleft()
            failure = self._failure_of(batch, error)
            if isinstance(failure, Met):
                [message] = batch.messages
                self._report.met[message.message_id] = failure
                if failure.how == "rescheduled":
                    continue
            if failure is None or isinstance(failure, Met):
                self._note_stored(batch)
                continue
            self._report.fail(batch.messages, failure)
            if not isinstance(error, redis.ResponseError | JobExists):
                for late in self._under_way:
                    self._report.fail(late.messages, failure)
                rest = BrokerUnavailable(f"Not sent, since the sends before it failed: {failure}", may_be_stored=False)
                self._report.fail(messages[self._prepared :], rest)
                return

    def _batches(self, messages: Sequence[Message[Any]]) -> Iterator[tuple[list[Row], tuple[str, int]]]:
        while self._prepared < len(messages):
            batch = self._prepare(messages)
            if batch.rows:
                self._under_way.append(batch)
                yield batch.rows, batch.send

    def _prepare(self, messages: Sequence[Message[Any]]) -> _Batch:
        fit: list[Message[Any]] = []
        rows: list[Row] = []
        size = 0
        while self._prepared < len(messages) and len(rows) < SEND_BATCH and size < SEND_BYTES:
            message = messages[self._prepared]
            if rows and message.options.get("unique_key"):
                break  # one that may be refused is sent by itself, after these
            self._prepared += 1
            try:
                delay_ms = self._delay_of(message)
                self._broker.emit_before("enqueue", message, delay_ms)
                row = self._broker.row(message, delay_ms)
                rows.append(row)
                fit.append(message)
                size += len(row.data)
                if row.unique:
                    break
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one message must not keep the others back
                self._report.fail([message], error)
        return _Batch(fit, rows, self._broker.producer.next_pipelined_send(), monotonic())

    def _failure_of(
        self, batch: _Batch, error: redis.RedisError | JobExists | Met | None
    ) -> BrokerUnavailable | JobExists | Met | None:
        if error is None or isinstance(error, JobExists | Met):
            return error
        is_early = monotonic() - batch.started < REPEAT_WITHIN_SECONDS
        # What a script that is not there has refused has done nothing, however long the answer took.
        if isinstance(error, NoScriptError) or (isinstance(error, redis.ConnectionError) and is_early):
            try:
                answer = self._broker.send_rows(self._queue, batch.rows, batch.send)
            except (BrokerUnavailable, JobExists) as still:
                return still
            return answer if isinstance(answer, Met) else None
        return self._broker.unavailable(error)

    def _note_stored(self, batch: _Batch) -> None:
        self._report.stored.extend(batch.messages)
        if self._broker.hooks_of("after_enqueue"):
            for message in batch.messages:
                self._broker.emit_after("enqueue", message, self._delay_of(message))

    def _delay_of(self, message: Message[Any]) -> int | None:
        return self._delays_ms.get(message.message_id, self._delay_ms) if self._delays_ms else self._delay_ms
