"""Speed against rivals: each module prints ratios from arms interleaved in one run."""
