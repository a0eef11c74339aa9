"""Stage `report`: compare all systems, with significance tests, in the terminal and on one page."""
