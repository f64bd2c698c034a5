//! Text on its way into a page.

use std::fmt;

/// Text as it may stand in HTML, in an attribute and in SVG. Every string of a page goes through
/// this.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Control characters have no place in HTML and may confuse a terminal's `cat`.
                c if c.is_control() && c != '\n' && c != '\t' => f.write_str("\u{fffd}")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_to_html_is_escaped() {
        let escaped = Escaped("<b a=\"1\" b='2'>&\u{7}\n").to_string();
        assert_eq!(escaped, "&lt;b a=&quot;1&quot; b=&#39;2&#39;&gt;&amp;\u{fffd}\n");
    }
}
