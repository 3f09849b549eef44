//! Launches the kernel of fixed.cu.

use super::Table;
use crate::device::Stream;
use crate::error::Result;
use crate::kernels::abi::{FixedArgs, conversion};

/// Whether the kernel computes this conversion: it neither divides by zero nor reads or writes outside a value.
pub(super) fn is_sound(conversion: u32, factor: i64, in_width: u32, out_width: u32) -> bool {
    let integer = |width| matches!(width, 1 | 2 | 4 | 8);
    let wide = |width| integer(width) || matches!(width, 16 | 32);
    match conversion {
        conversion::COPY | conversion::COPY_TAIL => 0 < out_width && out_width <= in_width,
        conversion::BOOL => in_width == 0 && out_width == 0,
        conversion::SIGN_EXTEND => integer(in_width) && wide(out_width) && in_width <= out_width,
        conversion::BIG_ENDIAN => 0 < in_width && in_width <= out_width && wide(out_width),
        conversion::INT96_NANOS => in_width == 12 && out_width == 8 && factor > 0,
        conversion::DIVIDE => integer(in_width) && out_width == 8 && factor > 0,
        conversion::MULTIPLY => integer(in_width) && out_width == 8,
        _ => false,
    }
}

pub(super) fn launch(stream: &Stream, table: &Table, items: u64, count: u32) -> Result<()> {
    let Table { pages, columns, states, fault } = *table;
    // SAFETY: the list holds `count` parts of pages of the table, and both live until the stream has been synchronised.
    unsafe { stream.launch(count, &FixedArgs { pages, columns, states, items, fault, count: count.into() }) }
}
