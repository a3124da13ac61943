//! Tables of text.

use std::io::Write;

use anyhow::Result;

/// The first column to the left, all others to the right, as wide as their widest cell.
pub fn print_table(out: &mut impl Write, rows: &[Vec<String>]) -> Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| widest(column).unwrap_or(0)).collect();
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  "))?;
        if index == 0 {
            writeln!(out, "{}", "─".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let mut out = Vec::new();
        let rows = [["a", "µs"], ["long", "1"]].map(|row| row.map(str::to_owned).to_vec());
        print_table(&mut out, &rows).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a     µs\n────────\nlong   1\n");
    }
}
