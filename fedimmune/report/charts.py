"""What a picture shows, without how it is drawn: the page and the paper draw the same."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BarChart", "Bubbles", "Cell", "Chart", "Column", "Grid", "LineChart", "Row", "Series"]

Values = tuple[float | None, ...]


@dataclass(frozen=True)
class Chart:
    """A picture.

    Parameters
    ----------
    name
        For files and tests: short, without spaces.
    title
        For people.
    reading
        What is to be seen, in a sentence: for who cannot see it.
    """

    name: str
    title: str
    reading: str


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Parameters
    ----------
    label
        Its name.
    style
        Which colour, dash and marker; -1 is the limit's.
    values
        One a round; None leaves a gap.
    low, high
        The band around it, where there are several runs.
    """

    label: str
    style: int
    values: Values
    low: Values | None = None
    high: Values | None = None


@dataclass(frozen=True)
class LineChart(Chart):
    """Lines over rounds.

    Parameters
    ----------
    series
        The lines.
    top
        Where the axis of values ends; it begins at 0.
    is_share
        Whether values are shares, shown as percentages.
    along
        What is counted along the other axis.
    level
        A level line with its name, such as the attackers' share among the clients.
    """

    series: tuple[Series, ...]
    top: float = 1.0
    is_share: bool = True
    along: str = "round"
    level: tuple[float, str] | None = None

    @property
    def length(self) -> int:
        """How many rounds there are."""
        return max((len(series.values) for series in self.series), default=0)


@dataclass(frozen=True)
class BarChart(Chart):
    """Bars of several parts, one a row.

    Parameters
    ----------
    parts
        Names of the parts.
    rows
        Labels, and a value a part.
    unit
        Of the values.
    """

    parts: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    unit: str


@dataclass(frozen=True)
class Cell:
    """One cell of a grid.

    Parameters
    ----------
    value
        Shown as colour; None where there is none.
    verdict, reason
        What there is to say of it, in a word and in more.
    """

    value: float | None
    verdict: str = ""
    reason: str = ""

    @property
    def note(self) -> str:
        """All that there is to say."""
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


@dataclass(frozen=True)
class Row:
    """One row of a grid.

    Parameters
    ----------
    label
        Its name.
    cells
        One a column; None is blank.
    marked
        Whether it is one of those that the grid marks.
    """

    label: str
    cells: tuple[Cell | None, ...]
    marked: bool = False

    @property
    def values(self) -> Values:
        """What the cells have, those without left out."""
        return tuple(cell.value for cell in self.cells if cell is not None)


@dataclass(frozen=True)
class Column:
    """One column of a grid or of bubbles.

    Parameters
    ----------
    label
        Its name.
    marked
        Whether it is one of those that the picture marks.
    note
        What there is to say of it as a whole.
    """

    label: str
    marked: bool = False
    note: str = ""


@dataclass(frozen=True)
class Grid(Chart):
    """Rows by columns, the value as colour.

    Parameters
    ----------
    rows, columns
        What there is.
    row_word, column_word
        What a row and a column are.
    top
        The highest value.
    is_share
        Whether values are shares, shown as percentages.
    mark_word
        What is said of marked rows and columns.
    """

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    row_word: str
    column_word: str
    top: float
    is_share: bool
    mark_word: str = ""


@dataclass(frozen=True)
class Bubbles(Chart):
    """Classes by clients, the number of samples as a disc's area.

    Parameters
    ----------
    columns
        The clients.
    counts
        A row a class, a number a client.
    mark_word
        What is said of marked clients.
    """

    columns: tuple[Column, ...]
    counts: tuple[tuple[int, ...], ...]
    mark_word: str = ""
