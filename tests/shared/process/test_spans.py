from livescale.shared.process.otlp import span_context
from livescale.shared.process.spans import scale_traceparent


def test_a_scale_s_span_has_the_same_ids_wherever_they_are_made() -> None:
    first, again = span_context(scale_traceparent("scale-1")), span_context(scale_traceparent("scale-1"))
    assert first.is_valid
    assert first.trace_flags.sampled
    assert (first.trace_id, first.span_id) == (again.trace_id, again.span_id)


def test_two_scales_are_two_traces() -> None:
    one, other = span_context(scale_traceparent("scale-1")), span_context(scale_traceparent("scale-2"))
    assert one.trace_id != other.trace_id
    assert one.span_id != other.span_id
