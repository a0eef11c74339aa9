"""Stage `report`: every system side by side, with significance, in the terminal and on one page."""
