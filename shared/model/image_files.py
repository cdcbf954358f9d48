"""What `preprocessor_config.json` says of a checkpoint: how an image becomes the numbers that the model takes."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from livescale.shared.messages.images import CHANNELS, Images
from livescale.shared.model.checkpoint_files import decode_file
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile, is_number

PREPROCESSOR = "preprocessor_config.json"
# Keys that change no pixel of an image that is not cropped or padded. Images are in RGB, whatever the file says.
HARMLESS = {
    *("image_processor_type", "feature_extractor_type", "processor_class", "data_format", "input_data_format"),
    *("return_tensors", "device", "disable_grouping", "default_to_square", "image_seq_length", "crop_size"),
    *("size_divisor", "pad_size", "do_convert_rgb"),
}
RESAMPLE = 2  # bilinear, as transformers has it where the file says nothing
HALF = [0.5] * CHANNELS


def read_preprocessing(directory: Path, images: Images) -> Images:
    """The images with what the file says of them. Raises CheckpointError where it is missing, or asks for what is not
    done."""
    path = directory / PREPROCESSOR
    file = ConfigFile(decode_file(path, dict[str, Any]))
    try:
        return msgspec.convert(msgspec.to_builtins(_read(file, images)), Images)
    except (CheckpointError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _read(file: ConfigFile, images: Images) -> Images:
    if not file.flag("do_resize", True):
        raise CheckpointError("do_resize is false; set it to true, as images come in any size")
    asked = (images.size, {"height": images.size, "width": images.size})
    file.get("size", asked[0], wanted=lambda value: value in asked, said=f"image_size of config.json, {images.size}")
    resample = file.whole("resample", RESAMPLE)
    if not 0 <= resample <= 5:
        raise CheckpointError(f"resample is {resample}, must be one of Pillow's filters, 0 to 5")
    factor = file.number("rescale_factor", 1 / 255)
    mean, deviation = _three(file, "image_mean"), _three(file, "image_std")
    scales, normalizes = file.flag("do_rescale", True), file.flag("do_normalize", True)
    if min(deviation) <= 0:
        raise CheckpointError(f"image_std is {list(deviation)}, must be positive")
    file.refuse_unread(HARMLESS, PREPROCESSOR)
    return replace(
        images,
        resample=resample,
        scale=factor if scales else 1.0,
        mean=mean if normalizes else (0.0,) * CHANNELS,
        deviation=deviation if normalizes else (1.0,) * CHANNELS,
    )


def _three(file: ConfigFile, key: str) -> tuple[float, float, float]:
    """A number for each channel, or one for all."""
    found = file.get(key, HALF, wanted=_are_channels, said="a number, or one for each of three channels")
    red, green, blue = found if isinstance(found, list) else [found] * CHANNELS
    return float(red), float(green), float(blue)


def _are_channels(value: object) -> bool:
    return is_number(value) or (isinstance(value, list) and len(value) == CHANNELS and all(map(is_number, value)))
