"""Property tests run the same examples every time, so that a red run can be repeated by anyone."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
