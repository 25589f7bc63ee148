"""For the tests of services (`TestApp`) and of transports (`servers`). Imports no test framework."""

from ruststream_core.testing._app import Call, RouteRecord, TestApp

__all__ = ["Call", "RouteRecord", "TestApp"]
