"""Computations on the word tables and output heads of served models, which REST and gRPC share."""

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from models.tables import analysis
from models.tables.analysis import RowFacts, Spectrum
from models.tables.row_blocks import Check
from models.tables.similar import row_norms
from service.embedding.model import Model
from service.embedding.word_table import WordTable
from service.scheduling.serial_executor import SerialExecutor


class TableComputations:
    """Runs computations of a kind one at a time, and caches results that depend on a table alone.

    Attributes:
        logits: runs those for the tokens of the largest logits.
        searches: runs those for similar tokens.
        rows: runs those of facts about rows.
        spectra: runs those of singular values.
    """

    def __init__(self) -> None:
        self.logits = SerialExecutor("logits", "requests for the tokens of the largest logits")
        self.searches = SerialExecutor("similar", "searches")
        self.rows, self.spectra = SerialExecutor("rows", "analyses"), SerialExecutor("spectrum", "analyses")
        self._norms: WeakKeyDictionary[Model, NDArray[np.float32]] = WeakKeyDictionary()  # a model has one table
        self._row_facts: WeakKeyDictionary[Model, RowFacts] = WeakKeyDictionary()
        self._spectrum: WeakKeyDictionary[Model, Spectrum] = WeakKeyDictionary()

    def row_norms(self, table: WordTable, check: Check) -> NDArray[np.float32]:
        """Return the lengths of a table's rows."""
        if (norms := self._norms.get(table.model)) is None:
            norms = self._norms[table.model] = row_norms(table.rows, check)
        return norms

    def row_facts(self, table: WordTable, check: Check) -> RowFacts:
        """Return norms, duplicates and the like of a table's rows."""
        if (facts := self._row_facts.get(table.model)) is None:
            facts = self._row_facts[table.model] = analysis.row_facts(table.rows, check=check)
        return facts

    def spectrum(self, table: WordTable, check: Check) -> Spectrum:
        """Return the singular values of a table."""
        if (spectrum := self._spectrum.get(table.model)) is None:
            spectrum = self._spectrum[table.model] = analysis.spectrum(table.rows, check)
        return spectrum
