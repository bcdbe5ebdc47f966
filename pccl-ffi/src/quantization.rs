//! How data travels: which requests for quantisation mean what. (Rule 23)

use pccl_core::types::{DataType, ReduceOp};

use crate::arguments::{by_number, data_type};
use crate::failure::Failure;
use crate::layout::QuantizationOptions;

/// `pcclQuantizationAlgorithm_t`, without the one that does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Algorithm {
    /// Between the smallest and the largest element of a block.
    MinMax,
    /// Around a zero point, in multiples of a scale.
    ZeroPointScale,
}

/// How the elements of one operation travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Travel {
    /// As they are.
    Plain,
    /// As another, narrower type.
    Quantized {
        /// Which.
        to: DataType,
        /// How.
        by: Algorithm,
    },
}

/// What a request means for elements of type `data`.
pub(crate) fn travel(
    data: DataType,
    op: ReduceOp,
    options: QuantizationOptions,
) -> Result<Travel, Failure> {
    const ALGORITHMS: [Option<Algorithm>; 3] = [
        None,
        Some(Algorithm::MinMax),
        Some(Algorithm::ZeroPointScale),
    ];
    let to = data_type(options.quantized_datatype, "quantized_datatype")?;
    let by = by_number(
        &ALGORITHMS,
        options.algorithm,
        "algorithm",
        "pcclQuantizationAlgorithm_t",
    )?;
    let Some(by) = by else {
        return Ok(Travel::Plain);
    };
    if !data.is_float() {
        return Err(Failure::argument(format!(
            "{data:?} elements cannot be quantised; only floating point ones can"
        )));
    }
    if by == Algorithm::ZeroPointScale && !matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        return Err(Failure::argument(format!(
            "zero point and scale goes with sum and average, not with {op:?}"
        )));
    }
    if to.size() >= 4 || to.size() >= data.size() {
        return Ok(Travel::Plain);
    }
    if to.is_float() {
        return Err(Failure::argument(format!(
            "{to:?} is no type that data is quantised to; give an integer type of 8 or 16 bits"
        )));
    }
    Ok(Travel::Quantized { to, by })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;

    fn asked(data: DataType, op: ReduceOp, to: DataType, algorithm: i32) -> Option<Travel> {
        let options = QuantizationOptions {
            quantized_datatype: to as i32,
            algorithm,
        };
        match travel(data, op, options) {
            Ok(travel) => Some(travel),
            Err(failure) => {
                assert_eq!(failure.code, Code::InvalidArgument);
                None
            }
        }
    }

    #[test]
    fn without_an_algorithm_the_type_has_no_effect() {
        for data in DataType::ALL {
            for op in ReduceOp::ALL {
                assert_eq!(asked(data, op, DataType::U8, 0), Some(Travel::Plain));
            }
        }
    }

    #[test]
    fn integers_are_not_quantised() {
        for data in DataType::ALL.into_iter().filter(|data| !data.is_float()) {
            assert_eq!(asked(data, ReduceOp::Sum, DataType::U8, 1), None);
        }
    }

    #[test]
    fn zero_point_and_scale_goes_with_sums_only() {
        for op in ReduceOp::ALL {
            let sum = matches!(op, ReduceOp::Sum | ReduceOp::Avg);
            let to = DataType::I8;
            assert_eq!(asked(DataType::F32, op, to, 2).is_some(), sum);
            assert!(asked(DataType::F32, op, to, 1).is_some());
        }
    }

    #[test]
    fn wide_types_send_the_data_as_it_is() {
        use DataType::{F16, F32, F64, U8, U16, U32};
        let plain = Some(Travel::Plain);
        for (data, to) in [(F64, U32), (F64, F32), (F32, F32), (F16, U16), (F16, U32)] {
            assert_eq!(asked(data, ReduceOp::Sum, to, 1), plain, "{data:?} {to:?}");
        }
        let by = Algorithm::MinMax;
        for (data, to) in [(F64, U16), (F32, U16), (F32, U8), (F16, U8)] {
            let narrow = Some(Travel::Quantized { to, by });
            assert_eq!(asked(data, ReduceOp::Max, to, 1), narrow);
        }
        assert_eq!(asked(F32, ReduceOp::Sum, F16, 1), None);
    }
}
