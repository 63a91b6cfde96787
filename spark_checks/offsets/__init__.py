"""Rewinds, jumps and gaps of committed offsets: how offset_history searches, explains and reports them."""
