"""The exercises, one module for each notebook: ``nb01_policy_gradient`` holds those of ``01_policy_gradient.ipynb``.

A module has ``EXERCISES``, a tuple of :class:`grpo_from_scratch.course.exercises.Exercise` in the notebook's order.
"""
