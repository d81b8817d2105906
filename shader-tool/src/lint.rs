//! Rules beyond what clang checks.
use crate::Diagnostic;
use crate::source::parse::Unit;
pub(crate) fn check(_unit: &Unit) -> Vec<Diagnostic> {
    Vec::new()
}
