"""What each caller holds of something that all share: the last part of it is for callers that hold little."""


class HeldByCallers:
    """Amounts by caller.

    Args:
        common: what all together may hold before the last part begins.
        little: what a caller may hold, of the last part included.
    """

    def __init__(self, common: int, little: int) -> None:
        self._common, self._little = common, little
        self._amounts: dict[str, int] = {}

    def may_take(self, caller: str, amount: int, held: int) -> bool:
        """Return whether a caller may take an amount; one that is unknown always may.

        Args:
            held: what all callers hold.
        """
        is_common = not caller or held + amount <= self._common
        return is_common or self._amounts.get(caller, 0) + amount <= self._little

    def take(self, caller: str, amount: int) -> None:
        """Count what a caller takes."""
        self._amounts[caller] = self._amounts.get(caller, 0) + amount

    def give_back(self, caller: str, amount: int) -> None:
        """Stop counting an amount."""
        left = self._amounts.get(caller, 0) - amount
        if left > 0:
            self._amounts[caller] = left
        else:
            self._amounts.pop(caller, None)
