"""Plans and analyses as HTML for notebooks; no network assets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_plan.report import text

if TYPE_CHECKING:
    from remat_plan.plan import Plan


def plan_html(plan: Plan) -> str:
    """The plan as an HTML fragment."""
    return f"<pre>{text.plan_text(plan)}</pre>"
