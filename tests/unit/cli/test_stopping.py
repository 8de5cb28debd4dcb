import signal
import subprocess
import sys
import threading
import time

#: Takes the event's lock as often as it can, then waits for its parent to stop sending signals.
BUSY_WITH_THE_EVENT = """
import os, time
from service.cli.stopping import stop_on_signals
stop = stop_on_signals()
print("ready", flush=True)
end = time.monotonic() + 1
while time.monotonic() < end:
    stop.clear()
    stop.wait(0.00001)
print("survived", flush=True)
os.read(0, 1)
os._exit(0)
"""


def test_signals_at_any_moment_do_not_lock_the_process_up():
    argv = [sys.executable, "-c", BUSY_WITH_THE_EVENT]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.0005)
        # A process that is locked up must not lock up the test.
        killer = threading.Timer(10, process.kill)
        killer.start()
        assert process.stdout.readline() == "survived\n"
        killer.cancel()
        process.stdin.close()


def test_a_signal_sets_the_event_and_calls_what_was_asked_for():
    code = (
        "import os, signal; from service.cli.stopping import stop_on_signals\n"
        "stop = stop_on_signals(lambda: print('told', flush=True))\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "assert stop.wait(10)\n"
        "while True: os.read(0, 1) or exit()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "told\n"
