//! Sizes as people write them.

/// A number of bytes: decimal or 0x…, with K, M, G or T (or KiB …) for binary multiples, in
/// letters of either case; `None` if it is none.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").unwrap_or(&upper);
    if let Some(hex) = upper.strip_prefix("0X") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let digits = upper.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &upper[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    // `parse` would take a sign.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| digits.parse::<u64>().ok()).flatten()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_nothing_else() {
        for (text, bytes) in [
            ("4096", 4096),
            ("0x1000", 4096),
            ("4k", 4096),
            ("3MiB", 3 << 20),
            ("1G", 1 << 30),
            ("2t", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for wrong in ["", "K", "KK", "-1", "+1", "1.5G", "0x", "4X", "99999999999T", "1 K"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }
}
