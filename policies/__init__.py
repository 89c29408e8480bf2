"""The policy pack: refuses unsafe or unaffordable plans."""
