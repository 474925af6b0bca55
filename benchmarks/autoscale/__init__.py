"""Autoscalers side by side: real traces, one simulated world, the shipped decision among them."""
