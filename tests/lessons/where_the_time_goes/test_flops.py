"""Floating-point operations are those counted by hand."""

from lessons.where_the_time_goes import flops


def test_a_sample_takes_what_its_layers_take_forward_and_backward():
    first, second, linear = 2 * 25 * 8 * 24 * 24, 2 * 25 * 8 * 56 * 8 * 8, 2 * 896 * 10
    # Backward is twice forward, but nobody needs the gradient of the pixels.
    assert flops.per_sample("workshop") == 2 * first + 3 * (second + linear)


def test_a_layer_moves_its_input_weights_and_output_once():
    linear = flops.layers("workshop", batch=4, repeats=1)[-1]
    assert linear.layer == "Linear 896 to 10"
    assert linear.flops == 4 * 2 * 896 * 10
    assert linear.moved_bytes == 4 * (4 * 896 + 4 * 10 + 896 * 10 + 10)
