"""The reference trainer: a task in, a trained model out, on one device or several.

fitted = fit(task, out=Path("runs/sar"))
fitted.ended, fitted.step, fitted.metrics
"""
