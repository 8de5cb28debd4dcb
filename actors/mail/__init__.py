"""The mail client of the actor `email.send`. Only `actors.email` imports it.

rules.py       what may stand in a header, an address, a file name: the one place for it
payload.py     what a job is sent with
catalogue.py   which templates there are
rendering.py   a template and a context become text and HTML
policy.py      how header lines are folded and encoded
message.py     payload and rendered parts become the bytes of one message
replies.py     what a server's refusal means for the job
smtp.py        the bytes go to the SMTP server
"""
