"""The style of the pages of a site: that of reports and consoles, and lists of definitions.

Promises: text can be read in light, dark, on narrow screens and on paper.
Refuses: nothing.
"""

from fedboost.people.console.assets import STYLE as _CONSOLE

STYLE = (
    _CONSOLE
    + """
dl { display: grid; grid-template-columns: minmax(6rem, 9rem) 1fr; gap: .25rem 1rem; margin: .75rem 0; }
dt { font-weight: 600; }
dd { margin: 0; grid-column: 2; overflow-wrap: anywhere; min-width: 0; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { grid-column: 1; }
  dt { margin-top: .5rem; } }
"""
)
