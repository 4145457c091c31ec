"""Web pages that a process serves itself, e.g. the aggregator's console.

`serving` accepts connections, `guard` checks each request before it reaches a page, `logins` identifies the
caller, and `app` builds an application from a table of routes.
"""
