"""How hard hypothesis tries: quick unless HYPOTHESIS_PROFILE says otherwise."""

import os

from hypothesis import HealthCheck, settings

# Examples are cheap and the machine may be busy: what is slow here is the neighbour, not the law.
settings.register_profile("quick", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", parent=settings.get_profile("quick"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
