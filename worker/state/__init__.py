"""The state that one rank holds, and where that of its next plan will live."""
