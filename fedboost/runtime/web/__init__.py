"""Web pages that a process serves itself: the listener, and the guard before every page.

`serving` listens, `guard` judges every request before a page sees it, `logins` knows who asks, and `app`
makes an application of a table of routes.
"""
