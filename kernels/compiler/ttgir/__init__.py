"""TTGIR as text: read into a tree, edited, printed; its control flow, functions, types, shapes, names and source
locations as values. Needs neither Triton nor torch.
"""
