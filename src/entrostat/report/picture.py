"""The matplotlib figure that everything here draws on."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

DPI = 200  # of PNG files; a notebook shows half of it


class Picture(Figure):
    """A figure that a notebook shows by itself, without pyplot and its list of open figures."""

    def png(self, dpi: int = DPI) -> bytes:
        """The picture as PNG on a white ground."""
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
        return data.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png(DPI // 2)
