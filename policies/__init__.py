"""The policy pack. It refuses unsafe or unaffordable plans."""
