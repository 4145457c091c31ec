"""Web pages that a process serves itself: the listener, and the guard before every page.

`serving` listens, `guard` judges every request before a page sees it, `tokens` and `logins` say who asks. Who
serves pages gives `serving.WebServer` an ASGI application behind a `guard.Guard`.
"""
