//! Which earlier dispatches touch the same bytes.

use std::collections::HashMap;

use crate::device::{BufferId, Slice};
use crate::pass::Access;

/// What a pass has done to its buffers so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracker {
    buffers: HashMap<BufferId, Vec<Touch>>,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    slice: Slice,
    writes: bool,
    dispatch: usize,
}

impl Tracker {
    /// Adds the dispatches that an access must wait for.
    pub(crate) fn conflicts(&self, slice: Slice, access: Access, into: &mut Vec<usize>) {
        let writes = access != Access::Read;
        let earlier = self.buffers.get(&slice.buffer).into_iter().flatten();
        into.extend(
            earlier
                .filter(|touch| (writes || touch.writes) && touch.slice.overlaps(slice))
                .map(|touch| touch.dispatch),
        );
    }

    /// Remembers an access. A write makes earlier touches inside its range irrelevant: whoever comes later waits for the write.
    pub(crate) fn record(&mut self, slice: Slice, access: Access, dispatch: usize) {
        let writes = access != Access::Read;
        let touches = self.buffers.entry(slice.buffer).or_default();
        if writes {
            touches.retain(|touch| {
                touch.dispatch == dispatch
                    || touch.slice.offset < slice.offset
                    || touch.slice.offset + touch.slice.len > slice.offset + slice.len
            });
        }
        touches.push(Touch {
            slice,
            writes,
            dispatch,
        });
    }
}
