//! The demo checkpoint, which is part of the program: `lily` works anywhere, without a download.

use lily_model::Source;

/// Weights are read in place, in wide loads: the file starts at a border of cache lines, as a mapped file does.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../../demo/model.safetensors"));

static FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../../demo/config.json")),
    (
        "generation_config.json",
        include_bytes!("../../demo/generation_config.json"),
    ),
    ("tokenizer.json", include_bytes!("../../demo/tokenizer.json")),
    (
        "tokenizer_config.json",
        include_bytes!("../../demo/tokenizer_config.json"),
    ),
    ("chat_template.jinja", include_bytes!("../../demo/chat_template.jinja")),
    ("model.safetensors", &WEIGHTS.0),
];

/// Where the demo checkpoint's files are.
pub fn source() -> Source {
    Source::Embedded {
        name: crate::model::DEMO,
        files: FILES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_are_aligned() {
        assert_eq!(WEIGHTS.0.as_ptr() as usize % 64, 0);
    }
}
