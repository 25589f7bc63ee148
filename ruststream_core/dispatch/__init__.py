"""From a declared route to a running one: planned offline, put together once, concluded per delivery."""

from ruststream_core.dispatch._ending import Probe
from ruststream_core.dispatch._plan import RoutePlan, Wiring, plan_routes
from ruststream_core.dispatch._publish import Outlet
from ruststream_core.dispatch._route import Route, Surroundings
from ruststream_core.dispatch._senders import Senders

__all__ = ["Outlet", "Probe", "Route", "RoutePlan", "Senders", "Surroundings", "Wiring", "plan_routes"]
