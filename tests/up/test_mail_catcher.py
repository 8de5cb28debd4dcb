"""The mail catcher over SMTP."""

import smtplib
import subprocess
import sys

from service.cli.up.ports import listen_on, port_of


def test_every_mail_is_kept_whole_in_its_own_file(tmp_path):
    with listen_on(None) as listener:
        argv = [
            sys.executable,
            "-m",
            "service.cli.up.mail_catcher",
            "--fd",
            str(listener.fileno()),
            "--folder",
            tmp_path,
        ]
        process = subprocess.Popen(argv, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL)
        port = port_of(listener)
    with process:
        with smtplib.SMTP("127.0.0.1", port, timeout=20) as client:
            client.ehlo()
            assert client.has_extn("8bitmime")
            assert client.has_extn("smtputf8")
            for number in range(3):
                text = f"Subject: {number}\r\n\r\n.leading dot\r\nü\r\n".encode()
                client.sendmail(
                    "me@example.com", ["ü@example.com", "b@example.com"], text, ["SMTPUTF8", "BODY=8BITMIME"]
                )
        process.terminate()
        assert process.wait(10) == 0
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert [file.suffix for file in files] == [".eml"] * 3
    assert files[2].read_bytes().decode() == (
        "X-Envelope-From: me@example.com\r\nX-Envelope-To: ü@example.com, b@example.com\r\n"
        "Subject: 2\r\n\r\n.leading dot\r\nü\r\n"
    )
