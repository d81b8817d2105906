//! What the checker found, and where.

use crate::Pipeline;
use crate::emulator::abi::problem;
use std::fmt;

/// The kinds of mistakes that the emulator tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// Two threads touch the same byte, at least one writes, and no barrier orders them.
    Race,
    /// Threadgroup memory is read before any thread of the threadgroup has written it.
    UninitializedRead,
    /// An access outside what the argument or variable is.
    OutOfBounds,
    /// An access at an address that is no multiple of its size.
    Misaligned,
    /// Lanes of one simdgroup wait at different SIMD operations or barriers, or some have returned.
    DivergentSimd,
    /// Threads of one threadgroup wait at different barriers, or some have returned.
    DivergentBarrier,
    /// A dispatch touches what another dispatch writes, with no barrier between them.
    Hazard,
    /// More threadgroup memory than there is.
    ThreadgroupMemory,
}

impl FindingKind {
    pub(crate) fn of_problem(what: u32) -> Option<Self> {
        match what {
            problem::DIVERGED | problem::LANES_MISSING => Some(Self::DivergentSimd),
            problem::BARRIER_MISSED => Some(Self::DivergentBarrier),
            _ => None, // A bad access, which was reported when it happened.
        }
    }
}

pub(crate) fn explain(what: u32) -> &'static str {
    match what {
        problem::DIVERGED => "lanes of one simdgroup wait at different SIMD operations or barriers",
        problem::LANES_MISSING => "a SIMD operation although some lanes have returned (or the simdgroup is not full)",
        problem::BARRIER_MISSED => "a threadgroup barrier although some threads have returned",
        _ => "the threadgroup could not finish",
    }
}

/// One mistake of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind of mistake.
    pub kind: FindingKind,
    /// The kernel's name.
    pub kernel: String,
    /// The source that the line is in; the kernel's own if unknown.
    pub file: String,
    /// Counted from 1; the kernel's first line if unknown.
    pub line: u32,
    /// Where the kernel called the function that the line is in, if it is in one.
    pub called_from: Option<(String, u32)>,
    /// The buffer argument's name, if it is about one.
    pub buffer: Option<String>,
    /// The other access's or operation's file and line, if there is one.
    pub other: Option<(String, u32)>,
    /// The rest, for people.
    pub detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {:?} in kernel {}",
            self.file, self.line, self.kind, self.kernel
        )?;
        if let Some(buffer) = &self.buffer {
            write!(f, ", buffer {buffer}")?;
        }
        write!(f, ": {}", self.detail)?;
        if let Some((file, line)) = &self.called_from {
            write!(f, " (called from {file}:{line})")?;
        }
        if let Some((file, line)) = &self.other {
            write!(f, " (the other is at {file}:{line})")?;
        }
        Ok(())
    }
}

/// Who did it: a return address and a thread's index in its threadgroup.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    pub pc: usize,
    pub thread: u32,
}

/// A finding before its addresses are looked up.
pub(crate) struct Raw {
    pub kind: FindingKind,
    pub site: Site,
    pub buffer: Option<String>,
    pub other_pc: Option<usize>,
    pub group: u32,
    pub detail: String,
}

impl Finding {
    pub(crate) fn of_kernel(pipeline: &Pipeline, kind: FindingKind, detail: String) -> Self {
        let kernel = pipeline.kernel();
        Self {
            kind,
            kernel: kernel.name.clone(),
            file: kernel.file.clone(),
            line: kernel.line,
            called_from: None,
            buffer: None,
            other: None,
            detail,
        }
    }

    /// For plain mode, where nothing but a divergence is noticed.
    pub(crate) fn divergence(pipeline: &Pipeline, what: u32, site: Site) -> Self {
        let kind = FindingKind::of_problem(what).unwrap_or(FindingKind::DivergentSimd);
        let raw = Raw {
            kind,
            site,
            buffer: None,
            other_pc: None,
            group: 0,
            detail: explain(what).to_owned(),
        };
        raw.resolve(pipeline)
    }
}

impl Raw {
    fn resolve(self, pipeline: &Pipeline) -> Finding {
        let mut finding = Finding::of_kernel(pipeline, self.kind, self.detail);
        let mut frames = pipeline
            .object
            .places(self.site.pc)
            .into_iter()
            .map(|(file, line, _)| (file, line));
        if let Some((file, line)) = frames.next() {
            (finding.file, finding.line) = (file, line);
        }
        finding.called_from = frames.next_back();
        finding.buffer = self.buffer;
        let other = self.other_pc.map(|pc| pipeline.object.places(pc));
        finding.other = other
            .and_then(|frames| frames.into_iter().next())
            .map(|(file, line, _)| (file, line));
        let _ = fmt::Write::write_fmt(
            &mut finding.detail,
            format_args!(" [thread {} of threadgroup {}]", self.site.thread, self.group),
        );
        finding
    }
}

/// Looks up lines, and drops what turns out to be one place or one line's mistake reported twice.
pub(crate) fn resolve(raw: Vec<Raw>, pipeline: &Pipeline) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for one in raw {
        let divergence = matches!(one.kind, FindingKind::DivergentSimd | FindingKind::DivergentBarrier);
        if let Some(other) = one.other_pc.filter(|_| divergence)
            && pipeline.object.places(other) == pipeline.object.places(one.site.pc)
        {
            continue;
        }
        let finding = one.resolve(pipeline);
        let same = |f: &Finding| {
            f.kind == finding.kind && f.file == finding.file && f.line == finding.line && f.buffer == finding.buffer
        };
        if !findings.iter().any(same) {
            findings.push(finding);
        }
    }
    findings
}
