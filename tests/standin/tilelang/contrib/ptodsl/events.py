"""A helper of the helpers."""


def notify(pto, source, target, event_id):
    """Set a flag in one pipe and wait for it in another."""
    pto.set_flag(source, target, event_id=event_id)
    pto.wait_flag(source, target, event_id=event_id)
