echo "step=1 loss=60"
echo "no such weights"
exit 7
