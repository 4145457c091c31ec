"""Web pages that a process serves itself: the listener, and the guard before every page.

`serving` listens, `guard` checks every request before a page gets it, `logins` identifies the caller, and
`app` makes an application from a table of routes.
"""
