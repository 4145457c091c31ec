"""Being here puts this folder on the path, so that every test can import `inprocess`.

Hypothesis draws the same examples in every run: a failing check is found by the change that caused it.
"""

from hypothesis import settings

settings.register_profile("fedboost", deadline=None, derandomize=True)
settings.load_profile("fedboost")
