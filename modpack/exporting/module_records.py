"""The records of the modules that a plan interns or mocks."""

from __future__ import annotations

from modpack.core.names import is_within, module_record
from modpack.core.plan import Plan
from modpack.core.rules import Action
from modpack.discovery.walk import Walker


def interned_records(plan: Plan, walker: Walker) -> dict[str, str]:
    """Return the record of each interned module that has a source. The others are only folders."""
    return {
        module: module_record(module, walker.is_package(module))
        for module in plan.modules(Action.INTERN)
        if walker.has_source(module)
    }


def mocked_records(plan: Plan) -> dict[str, str]:
    """Return the record of each mock: a package's record if the plan has modules below it."""
    mocked = plan.modules(Action.MOCK)
    planned = [*mocked, *plan.modules(Action.INTERN)]
    return {
        module: module_record(module, any(o != module and is_within(o, module) for o in planned))
        for module in mocked
    }
