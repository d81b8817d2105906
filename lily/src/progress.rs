//! Progress of downloads, of loading and of compiling kernels: bars on a terminal; elsewhere, a line a file for downloads.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use lily_model::hub::Progress;

use crate::output;

/// Shows downloads on the error output.
pub struct Downloads {
    bars: MultiProgress,
    open: Mutex<HashMap<String, ProgressBar>>,
    on_terminal: bool,
}

impl Downloads {
    /// Nothing is shown until something is downloaded.
    pub fn new() -> Self {
        Downloads {
            bars: MultiProgress::new(),
            open: Mutex::default(),
            on_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn with(&self, file: &str, act: impl FnOnce(&ProgressBar)) {
        if let Some(bar) = self.open.lock().unwrap_or_else(PoisonError::into_inner).get(file) {
            act(bar);
        }
    }
}

impl Progress for Downloads {
    fn start(&self, file: &str, size: u64, present: u64) {
        if !self.on_terminal {
            let rest = if present > 0 {
                format!(", {} of it here already", output::bytes(present))
            } else {
                String::new()
            };
            eprintln!("downloading {file}, {}{rest}", output::bytes(size));
        }
        let style = ProgressStyle::with_template(
            "{msg:32!} {bar:24} {decimal_bytes:>10}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = self
            .bars
            .add(ProgressBar::new(size).with_style(style).with_message(file.to_owned()));
        bar.set_position(present);
        // The rate is of what is downloaded now.
        bar.reset_eta();
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(file.to_owned(), bar);
    }

    fn advance(&self, file: &str, bytes: u64) {
        self.with(file, |bar| bar.inc(bytes));
    }

    fn finish(&self, file: &str) {
        self.with(file, |bar| bar.finish());
    }
}

/// Shows how much of the weights is on the device, on a terminal, where that takes a while.
pub struct Loading(ProgressBar);

impl Loading {
    /// Nothing is loaded yet of `bytes`.
    pub fn new(bytes: u64) -> Self {
        const WORTH_A_BAR: u64 = 500_000_000;
        if bytes < WORTH_A_BAR {
            return Loading(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template(
            "{msg} {bar:24} {decimal_bytes:>10}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar());
        // A bar draws on the error output, and only on a terminal.
        Loading(
            ProgressBar::new(bytes)
                .with_style(style)
                .with_message("loading weights"),
        )
    }

    /// More are there.
    pub fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Shows how many of how many kernel sources are compiled, on the error output.
pub fn kernels() -> impl FnMut(usize, usize) {
    let mut bar: Option<ProgressBar> = None;
    move |done, all| {
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("compiling the kernels for this GPU {bar:24} {pos}/{len}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(all as u64).with_style(style)
        });
        bar.set_position(done as u64);
        if done == all {
            bar.finish_and_clear();
        }
    }
}
