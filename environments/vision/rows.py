"""The catalogue's rows of this family."""

from __future__ import annotations

from environments.spec import family

ROWS = family(
    "vision",
    "vision",
    {
        "bar_chart": ("charts", "arithmetic"),
        "clock_pair": ("gauges", "arithmetic"),
        "count_overlap": ("counting",),
        "dot_area": ("geometry",),
        "flow_diagram": ("graphs", "search"),
        "form_fields": ("documents", "extraction"),
        "line_chart": ("charts",),
        "meter_dials": ("gauges",),
        "pie_chart": ("charts", "arithmetic"),
        "screen_click": ("screens", "grounding"),
        "spot_difference": ("comparison",),
        "stacked_bars": ("charts", "ratios"),
        "table_shot": ("tables", "arithmetic"),
        "terrain_route": ("maps", "search"),
    },
    needs_vision=True,
)
