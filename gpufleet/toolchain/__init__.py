"""The clone, and the programs that the project runs, with their versions. Standard library only."""
