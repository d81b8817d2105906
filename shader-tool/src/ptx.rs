//! PTX as it travels: text whose function constants are still open, with what a host must know to launch its kernels.
//!
//! One file holds the PTX of one `.metal` source for one GPU generation, and begins with comments:
//!
//! ```text
//! // lily-ptx <key>
//! // kernel <name> <slot> <slot> ...
//! ```
//!
//! `key` stands for everything that the text was made from ([`crate::Library::ptx_key`]). The slots of a kernel are the binding
//! indices of its arguments, in the order of the PTX parameters; `=` stands before those that are passed by value. A function constant `n` is the name `lily_constant_n`, and
//! whether it has a value `lily_given_n`; [`Ptx::specialise`] puts numbers in their place, so that one text serves every pipeline
//! and the driver's compiler still folds them.

use crate::{Constants, Library, PtxArch, ShaderError};
use std::fmt::Write as _;

const MAGIC: &str = "// lily-ptx ";
const KERNEL: &str = "// kernel ";
const CONSTANT: &str = "lily_constant_";
const GIVEN: &str = "lily_given_";

/// A kernel of a [`Ptx`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxKernel {
    /// Its name.
    pub name: String,
    /// In order.
    pub parameters: Vec<PtxParameter>,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtxParameter {
    /// The binding index in the Metal source.
    pub slot: u32,
    /// Bytes that are passed by value; `None` for a pointer to device memory.
    pub bytes: Option<usize>,
}

/// PTX of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptx {
    text: String,
    key: String,
    kernels: Vec<PtxKernel>,
}

fn invalid(message: impl Into<String>) -> ShaderError {
    ShaderError::Tool {
        tool: "PTX".to_owned(),
        message: message.into(),
    }
}

impl Ptx {
    /// Compiles one source of a library.
    ///
    /// # Errors
    /// As [`Library::ptx`].
    pub fn compile(library: &Library, file: &str, arch: PtxArch) -> Result<Self, ShaderError> {
        let mut text = format!("{MAGIC}{}\n", library.ptx_key(file, arch)?);
        for kernel in library.manifest().kernels.iter().filter(|k| k.unit == file) {
            let _ = write!(text, "{KERNEL}{}", kernel.name);
            for buffer in &kernel.buffers {
                let _ = write!(
                    text,
                    " {}{}",
                    if buffer.constant_space { "=" } else { "" },
                    buffer.index
                );
            }
            text.push('\n');
        }
        // clang's comments say nothing that counts, and differ with its version.
        let lines = library.ptx(file, arch)?;
        for line in lines.lines().filter(|line| !line.trim_start().starts_with("//")) {
            text.push_str(line.split_once("//").map_or(line, |(code, _)| code).trim_end());
            text.push('\n');
        }
        Self::parse(text)
    }

    /// Reads what [`Ptx::text`] gave.
    ///
    /// # Errors
    /// The text has not that form.
    pub fn parse(text: String) -> Result<Self, ShaderError> {
        let mut lines = text.lines();
        let key = lines.next().and_then(|line| line.strip_prefix(MAGIC));
        let key = key.ok_or_else(|| invalid("no key in the first line"))?.to_owned();
        let mut kernels = Vec::new();
        for line in lines.map_while(|line| line.strip_prefix(KERNEL)) {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default().to_owned();
            let entry = entry(&text, &name).ok_or_else(|| invalid(format!("no entry {name}")))?;
            let sizes = parameter_sizes(entry);
            let slots: Vec<&str> = words.collect();
            let parameters = slots
                .iter()
                .zip(&sizes)
                .map(|(word, &size)| match word.strip_prefix('=') {
                    Some(slot) => Some(PtxParameter {
                        slot: slot.parse().ok()?,
                        bytes: Some(size?),
                    }),
                    None => Some(PtxParameter {
                        slot: word.parse().ok()?,
                        bytes: None,
                    }),
                });
            let parameters: Option<Vec<PtxParameter>> = parameters.collect();
            let parameters = parameters.filter(|_| slots.len() == sizes.len());
            let parameters = parameters.ok_or_else(|| invalid(format!("{name}: slots and parameters do not match")))?;
            kernels.push(PtxKernel { name, parameters });
        }
        Ok(Self { text, key, kernels })
    }

    /// Everything.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it was made from.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its kernels.
    pub fn kernels(&self) -> &[PtxKernel] {
        &self.kernels
    }

    /// The whole text for these function constants; one without a value counts as undefined.
    pub fn with_constants(&self, constants: &Constants) -> String {
        substitute(&self.text, constants)
    }

    /// The text of one kernel alone, for these function constants.
    ///
    /// # Errors
    /// [`ShaderError::UnknownKernel`].
    pub fn specialise(&self, kernel: &str, constants: &Constants) -> Result<String, ShaderError> {
        let chosen = entry(&self.text, kernel).ok_or_else(|| ShaderError::UnknownKernel(kernel.to_owned()))?;
        let mut text = String::new();
        let mut rest = self.text.as_str();
        // Declarations stay: the driver's compiler drops those that the kernel does not use.
        while let Some(start) = next_entry(rest) {
            text.push_str(&rest[..start]);
            rest = &rest[start..];
            rest = &rest[entry_length(rest)..];
        }
        text.push_str(rest);
        text.push_str(chosen);
        Ok(substitute(&text, constants))
    }
}

/// Where the next kernel begins.
fn next_entry(text: &str) -> Option<usize> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with(".visible .entry ") || line.starts_with(".entry ") {
            return Some(at);
        }
        at += line.len();
    }
    None
}

/// Bytes of the kernel that `text` begins with: its body ends with a brace in the first column.
fn entry_length(text: &str) -> usize {
    text.find("\n}").map_or(text.len(), |end| (end + 3).min(text.len()))
}

/// The text of one kernel.
fn entry<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start = text.find(&format!(".entry {name}("))?;
    let start = text[..start].rfind('\n').map_or(0, |line| line + 1);
    let rest = &text[start..];
    Some(&rest[..entry_length(rest)])
}

/// Bytes of each parameter; `None` where its type is not known.
fn parameter_sizes(entry: &str) -> Vec<Option<usize>> {
    let list = entry.split_once('(').and_then(|(_, rest)| rest.split_once("\n{"));
    let list = list.map_or("", |(list, _)| list);
    let declarations = list
        .split(',')
        .filter_map(|declaration| declaration.split_once(".param ").map(|(_, rest)| rest));
    declarations
        .map(|declaration| {
            let count = declaration.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
            match count {
                Some((count, _)) => count.trim().parse().ok(),
                None => declaration.split(' ').next().and_then(|ty| match ty {
                    ".u64" | ".s64" | ".b64" | ".f64" => Some(8),
                    ".u32" | ".s32" | ".b32" | ".f32" => Some(4),
                    ".u16" | ".s16" | ".b16" => Some(2),
                    ".u8" | ".s8" | ".b8" => Some(1),
                    _ => None,
                }),
            }
        })
        .collect()
}

/// Replaces the names of function constants by their values.
fn substitute(text: &str, constants: &Constants) -> String {
    let (words, defined) = constants.words();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("lily_") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let prefix = [CONSTANT, GIVEN].into_iter().find(|prefix| rest.starts_with(prefix));
        let digits = prefix.map_or(0, |prefix| {
            let digits = rest[prefix.len()..].bytes().take_while(u8::is_ascii_digit);
            prefix.len() + digits.count()
        });
        let index = prefix.and_then(|prefix| rest[prefix.len()..digits].parse::<usize>().ok());
        match (prefix, index.filter(|&index| index < words.len())) {
            (Some(CONSTANT), Some(index)) => {
                let _ = write!(out, "{}", words[index]);
                rest = &rest[digits..];
            }
            (Some(_), Some(index)) => {
                let _ = write!(out, "{}", (defined >> index) & 1);
                rest = &rest[digits..];
            }
            _ => {
                out.push_str("lily_");
                rest = &rest["lily_".len()..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// lily-ptx 12ab
// kernel first 0 =3
// kernel second 1
.version 8.3
.target sm_90
.shared .align 16 .b8 first_xs[64];
.visible .entry first(
	.param .u64 .ptr .global .align 1 first_param_0,
	.param .align 4 .b8 first_param_1[20]
)
.maxntid 32, 1, 1
{
	mov.b32 %r1, lily_constant_3;
	mov.b32 %r2, lily_given_3;
	mov.b32 %r3, lily_constant_13;
	ret;
}
.shared .align 4 .b8 second_xs[4];
.visible .entry second(
	.param .u64 second_param_0
)
{
	ret;
}
";

    fn ptx() -> Ptx {
        Ptx::parse(TEXT.to_owned()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_head_says_what_a_host_must_know() {
        let ptx = ptx();
        assert_eq!(ptx.key(), "12ab");
        let parameter = |slot, bytes| PtxParameter { slot, bytes };
        assert_eq!(
            ptx.kernels()[0].parameters,
            [parameter(0, None), parameter(3, Some(20))]
        );
        assert_eq!(ptx.kernels()[1].parameters, [parameter(1, None)]);
        assert!(
            Ptx::parse(TEXT.replace("first 0 =3", "first 0")).is_err(),
            "a slot too few"
        );
        assert!(Ptx::parse(TEXT.replace("lily-ptx", "other")).is_err());
    }

    #[test]
    fn one_kernel_is_cut_out_and_its_constants_become_numbers() {
        let constants = Constants::new().bool(3, true).uint(13, 77);
        let first = ptx().specialise("first", &constants).unwrap_or_default();
        assert!(first.contains(".entry first(") && !first.contains(".entry second("));
        assert!(
            first.contains("first_xs") && first.contains("second_xs"),
            "declarations stay"
        );
        assert!(
            first.contains("mov.b32 %r1, 1;")
                && first.contains("mov.b32 %r2, 1;")
                && first.contains("mov.b32 %r3, 77;")
        );
        assert!(first.trim_end().ends_with('}') && first.matches('{').count() == 1);
        let undefined = ptx().specialise("first", &Constants::new()).unwrap_or_default();
        assert!(undefined.contains("mov.b32 %r1, 0;") && undefined.contains("mov.b32 %r2, 0;"));
        assert!(ptx().specialise("third", &constants).is_err());
        assert_eq!(ptx().with_constants(&constants).matches(".entry").count(), 2);
    }
}
